# The evidence that this source is right.
rule tests:
    input:
        inputs("tests"),
    output:
        update(receipts.TESTS_RECEIPT),
    shell:
        "exec inference-lab test"
