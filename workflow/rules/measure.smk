# Raw samples: what happened. The only stage that touches a clock; it holds the machine while it runs.
rule measure:
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


# The same, for experiments that measure only when asked for: -R measure_manual.
use rule measure as measure_manual with:
    wildcard_constraints:
        experiment=any_of(set(EXPERIMENTS) - set(AUTO)),
