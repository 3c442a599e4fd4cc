"""The named state table: states under names, with leases, quotas, reference counts and files of persistent states."""
