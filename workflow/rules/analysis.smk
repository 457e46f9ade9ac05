# What they say about the prediction.
rule analysis:
    input:
        inputs("analysis"),
    output:
        verdicts=update("results/{experiment}/verdicts.csv"),
        page=update("results/{experiment}/analysis.md"),
        receipt=update("results/{experiment}/receipts/analysis.json"),
    log:
        "logs/{experiment}/analysis.log",
    wildcard_constraints:
        experiment=any_of(set(EXPERIMENTS) - ARTICLES),
    params:
        section=section("analysis"),
    shell:
        "exec inference-lab stage analysis {wildcards.experiment:q} --section {params.section:q} --log {log:q}"


# The same, for experiments that have an article for a reader.
use rule analysis as analysis_and_article with:
    output:
        verdicts=update("results/{experiment}/verdicts.csv"),
        page=update("results/{experiment}/analysis.md"),
        article=update("docs/experiments/{experiment}.md"),
        receipt=update("results/{experiment}/receipts/analysis.json"),
    wildcard_constraints:
        experiment=any_of(ARTICLES),


# One report of all experiments that name it.
rule report:
    input:
        inputs("report"),
    output:
        page=update("results/{experiment}/report.md"),
        receipt=update("results/{experiment}/receipts/report.json"),
    log:
        "logs/{experiment}/report.log",
    wildcard_constraints:
        experiment=any_of(REPORTS),
    params:
        section=section("report"),
    shell:
        "exec inference-lab stage report {wildcards.experiment:q} --section {params.section:q} --log {log:q}"


# Every record checked and every derived file rebuilt in memory: what a fresh clone does first.
rule verify:
    input:
        inputs("verify"),
    output:
        update(lab_stages.VERIFIED_RECEIPT),
    log:
        "logs/verify.log",
    priority: -1  # after all that this run makes, or the next one would find something to verify
    params:
        config=lab_files.canonical({"experiments": config["experiments"]}),
    shell:
        "exec inference-lab verify --config {params.config:q} --receipt {output:q} --log {log:q}"
