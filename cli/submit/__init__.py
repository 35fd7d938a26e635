"""`rerail submit`: a training script on this machine becomes a supervised run, in one command."""
