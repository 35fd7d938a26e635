"""Airflow tasks that start supervised training runs and wait for them."""
