rule figure:
    """Draw one figure or page: one file, one function, one receipt."""
    input:
        inputs("figure"),
    output:
        figure=listed("results/{experiment}/{figure}", shows=""),
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
