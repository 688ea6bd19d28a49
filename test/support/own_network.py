import subprocess


def own_network():
    """The words that run a command where nobody else has ports; none where that is not allowed."""
    for flags in (["-n"], ["-rn"]):
        words = ["unshare", *flags, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        try:
            if subprocess.run([*words, "true"], capture_output=True).returncode == 0:
                return words
        except FileNotFoundError:
            break
    return []
