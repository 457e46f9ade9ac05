rule tests:
    """Run the unit tests: the evidence that this source is right."""
    input:
        inputs("tests"),
    output:
        update(lab_stages.TESTS_RECEIPT),
    log:
        "logs/tests.log",
    shell:
        "exec inference-lab test --log {log:q}"
