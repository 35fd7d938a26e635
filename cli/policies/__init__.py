"""`rerail policy`: policies checked before they are deployed, compared with what is deployed, and shown in full."""

from cli.policies.deployed import Compared, Stands, compare_policies

__all__ = ["Compared", "Stands", "compare_policies"]
