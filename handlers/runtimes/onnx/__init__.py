"""ONNX models on ONNX Runtime."""
