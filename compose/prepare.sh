#!/bin/sh
# Makes a tree of installed Python packages ready for a read-only container: smaller, and with its bytecode.
set -eu
# Test suites would double the size. Python loads ONNX Runtime's other library, which holds the same code as the one for C++.
find "$1" -depth -type d '(' -name tests -o -path '*/torch/test' ')' -exec rm -rf {} +
find "$1" -path '*/onnxruntime/capi/libonnxruntime.so*' -delete
# Sources and headers serve a compiler only, and none of these packages is compiled against here.
find "$1" -path '*/torch/*' -prune -o -path '*/triton/*' -prune -o '(' -name '*.pyx' -o -name '*.pxd' -o -name '*.c' -o -name '*.a' ')' -type f -exec rm {} +
# Symbols for debuggers. Libraries whose names carry a hash were rewritten by their packagers, and such files may not survive it.
if command -v strip >/dev/null; then
  find "$1" -path '*.libs/*' -prune -o -path '*/torch/*' -prune -o -path '*/nvidia/*' -prune -o -path '*/numpy/*' -prune \
    -o -name '*.so' -type f -exec strip --strip-debug {} +
fi
# Bytecode is identified by hash and not checked, because copying between build stages may change file times. Some wheels hold
# files for a newer Python, which neither compile nor run here.
python -m compileall -qq --invalidation-mode unchecked-hash \
  -x '/(site-packages/pip|ensurepip|idlelib|lib2to3|test|testing/_internal|f2py|distutils|pygments/lexers)/|/onnxruntime/(transformers|tools|quantization)/' \
  "$1" || true
