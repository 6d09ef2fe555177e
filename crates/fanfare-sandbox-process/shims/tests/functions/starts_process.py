import subprocess

CHILD = subprocess.Popen(["cat"], stdin=subprocess.PIPE)


def handler(event, context):
    return "with a process"
