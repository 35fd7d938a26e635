"""AWS on this machine: an emulator with a SageMaker training API, and the real template deployed into it."""
