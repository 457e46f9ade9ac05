# What they look like: one file, one function, one receipt.
rule figure:
    input:
        inputs("figure"),
    output:
        figure=update("results/{experiment}/{figure}"),
        receipt=update("results/{experiment}/receipts/{figure}.json"),
    log:
        "logs/{experiment}/{figure}.log",
    wildcard_constraints:
        experiment=any_of(EXPERIMENTS),
        figure=any_of(FIGURES),
    params:
        section=section("figure"),
    shell:
        "exec inference-lab stage figure {wildcards.experiment:q} {wildcards.figure:q} --section {params.section:q} --log {log:q}"
