from .beside import WORD


def handler(event, context):
    return [__name__, WORD]
