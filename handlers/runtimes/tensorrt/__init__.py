"""TensorRT engines and plans, with the little of CUDA that they need."""
