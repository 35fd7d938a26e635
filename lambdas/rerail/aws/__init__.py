"""The adapters that touch AWS: the only modules that import boto3, one a service."""
