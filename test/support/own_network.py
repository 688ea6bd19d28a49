import subprocess


def own_network():
    """Returns the words before a command that run it in its own network namespace, where no other
    process uses ports. Returns an empty list if namespaces are not permitted."""
    for flags in (["-n"], ["-rn"]):
        words = ["unshare", *flags, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        try:
            if subprocess.run([*words, "true"], capture_output=True).returncode == 0:
                return words
        except FileNotFoundError:
            break
    return []
