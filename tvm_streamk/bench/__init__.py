# SPDX-License-Identifier: Apache-2.0
"""Measures data-parallel, split-K, Stream-K and ``auto`` against each other on a real device.

``products`` says what is measured, ``forms`` builds and checks the kernels, ``measurement`` times
them in turn, ``process`` does so in a process of its own, ``table`` and ``picture`` show the
records.
"""
