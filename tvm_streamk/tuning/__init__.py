# SPDX-License-Identifier: Apache-2.0
"""The parts of the MetaSchedule integration; :mod:`tvm_streamk.meta_schedule_rule` is the entry."""
