# SPDX-License-Identifier: Apache-2.0
"""The commands of ``python -m tvm_streamk``, one module each."""
