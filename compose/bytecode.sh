#!/bin/sh
# Compiles the Python files below a folder once, because a read-only container would compile them at every start. The test
# suites and tools inside wheels are left out, because they would double the size.
set -eu
find "$1" -depth -type d '(' -name tests -o -path '*/torch/test' ')' -exec rm -rf {} +
# Bytecode is identified by hash and not checked, because copying between build stages may change file times. Some wheels hold
# files for a newer Python, which neither compile nor run here.
python -m compileall -qq --invalidation-mode unchecked-hash \
  -x '/(site-packages/pip|ensurepip|idlelib|lib2to3|test|testing/_internal|f2py|distutils|pygments/lexers)/|/onnxruntime/(transformers|tools|quantization)/' \
  "$1" || true
