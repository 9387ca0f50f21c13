"""The Open Inference Protocol v2, translated: one request is one job, its tensors are the job's input (D83)."""
