#!/bin/sh
# Compiles the Python files below a folder once, since a read-only container would do it at every start. Left out are the test
# suites and tools that wheels bring along, which take as much room as the rest.
set -eu
find "$1" -depth -type d '(' -name tests -o -path '*/torch/test' ')' -exec rm -rf {} +
# By hash and unchecked: copying between build stages need not keep the files' times. Some wheels hold files for a newer Python;
# those do not compile, and are not run either.
python -m compileall -qq --invalidation-mode unchecked-hash \
  -x '/(site-packages/pip|ensurepip|idlelib|lib2to3|test|testing/_internal|f2py|distutils|pygments/lexers)/|/onnxruntime/(transformers|tools|quantization)/' \
  "$1" || true
