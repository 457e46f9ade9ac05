# The evidence that this source is right.
rule tests:
    input:
        inputs("tests"),
    output:
        lab_layout.TESTS_RECEIPT,  # not update(): a failure leaves no receipt
    log:
        "logs/tests.log",
    shell:
        "exec inference-lab test --log {log:q}"
