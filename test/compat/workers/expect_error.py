# SPDX-License-Identifier: Apache-2.0


def expect(error, text, function):
    """Fails unless the function raises an exception of this class, or of one of a tuple of them, that contains the
    text."""
    try:
        function()
    except error as found:
        assert text in str(found), (text, found)
    else:
        raise AssertionError(f"nothing raised: {text}")
