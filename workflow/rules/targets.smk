# What is measured only when asked for, one target a name: snakemake -R measure_manual -- TARGET
for target, experiments in TARGETS.items():

    rule:
        name:
            target
        input:
            closing_table,
            results(experiments),
