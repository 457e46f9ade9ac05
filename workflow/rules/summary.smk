rule summary:
    """Summarise the samples: one row per cell, with intervals and flags."""
    input:
        inputs("summary"),
    output:
        table=listed(
            "results/{experiment}/summary.csv",
            "every number, with its interval and flags",
        ),
        receipt=update("results/{experiment}/receipts/summary.json"),
    log:
        "logs/{experiment}/summary.log",
    wildcard_constraints:
        experiment=any_of(EXPERIMENTS),
    params:
        section=section("summary"),
    shell:
        "exec inference-lab stage summary {wildcards.experiment:q} --section {params.section:q} --log {log:q}"
