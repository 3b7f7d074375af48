"""One stage a file, in the data's order; each runs by the CLI, by spark-submit and by Airflow."""
