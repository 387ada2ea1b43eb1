"""A real Label Studio on loopback: record its webhooks, and go through a day of its people. Not collected by pytest.

Nothing is installed here. Label Studio wants an environment of its own (about 1 GB):

    python3 -m venv /tmp/label-studio && /tmp/label-studio/bin/pip install label-studio==1.23.2

Then, from the root of the repository:

    export LABEL_STUDIO=/tmp/label-studio/bin/label-studio
    PYTHONPATH=src:tests .venv/bin/python -m real_studio.check    # what must hold, step by step; 4 to 10 minutes
    PYTHONPATH=src:tests .venv/bin/python -m real_studio.record   # writes tests/fixtures/label_studio_webhooks.json
"""
