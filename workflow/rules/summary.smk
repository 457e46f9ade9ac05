# What the samples amount to.
rule summary:
    input:
        inputs("summary"),
    output:
        table=update("results/{experiment}/summary.csv"),
        receipt=update("results/{experiment}/receipts/summary.json"),
    log:
        "logs/{experiment}/summary.log",
    wildcard_constraints:
        experiment=any_of(EXPERIMENTS),
    params:
        section=section("summary"),
    shell:
        "exec inference-lab stage summary {wildcards.experiment:q} --section {params.section:q} --log {log:q}"
