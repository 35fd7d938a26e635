"""`rerail doctor`: is everything ready - the deployment, a job, a request - and what is to be done where it is not."""
