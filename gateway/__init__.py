"""The HTTP gateway: checks requests, stores them as jobs, and answers.

It may import core and broker, but never handlers or workers: the gateway names models and never loads their code.
"""
