enable f16;
alias Number = f16;
