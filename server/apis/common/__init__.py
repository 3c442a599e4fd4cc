"""What several APIs share: fields of requests, and how a call is answered."""
