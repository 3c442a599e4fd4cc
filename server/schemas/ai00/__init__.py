"""The bodies of ai00's own routes."""
