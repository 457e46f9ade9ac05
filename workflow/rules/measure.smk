rule measure:
    """Measure: the only stage that reads a clock. It runs alone on the machine."""
    input:
        inputs("measure", lab_stages.TESTS_RECEIPT),
    output:
        raw=update("results/{experiment}/raw.csv"),
        controls=update("results/{experiment}/controls.csv"),
        manifest=update("results/{experiment}/manifest.json"),
    log:
        "logs/{experiment}/measure.log",
    wildcard_constraints:
        experiment=any_of(AUTO),
    resources:
        bench=1,
    params:
        section=section("measure"),
    shell:
        "exec inference-lab stage measure {wildcards.experiment:q} --section {params.section:q} --log {log:q}"


use rule measure as measure_manual with:
    """The same, for experiments that are measured only when asked for: -R measure_manual -- NAME."""
    wildcard_constraints:
        experiment=any_of(set(EXPERIMENTS) - set(AUTO)),
