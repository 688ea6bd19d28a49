# SPDX-License-Identifier: Apache-2.0
"""Modules of scripts/gpu_check."""
