import select

EPOLL = select.epoll()


def handler(event, context):
    return "with an epoll instance"
