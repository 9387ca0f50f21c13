"""What a gateway knows of pipelines: their models and the jobs of their stages."""
