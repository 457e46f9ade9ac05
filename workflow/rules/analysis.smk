rule analysis:
    """Judge the prediction: a verdict on each claim, and the page that explains it."""
    input:
        inputs("analysis"),
    output:
        verdicts=listed("results/{experiment}/verdicts.csv", "a verdict on each claim"),
        page=listed("results/{experiment}/analysis.md", "what the prediction came to"),
        receipt=update("results/{experiment}/receipts/analysis.json"),
    log:
        "logs/{experiment}/analysis.log",
    wildcard_constraints:
        experiment=any_of(set(EXPERIMENTS) - ARTICLES),
    params:
        section=section("analysis"),
    shell:
        "exec inference-lab stage analysis {wildcards.experiment:q} --section {params.section:q} --log {log:q}"


use rule analysis as analysis_and_article with:
    """The same, with an article for a reader."""
    output:
        verdicts=listed("results/{experiment}/verdicts.csv", "a verdict on each claim"),
        page=listed("results/{experiment}/analysis.md", "what the prediction came to"),
        article=listed("docs/experiments/{experiment}.md", "the article for a reader"),
        receipt=update("results/{experiment}/receipts/analysis.json"),
    wildcard_constraints:
        experiment=any_of(ARTICLES),


rule report:
    """Write one report of all experiments that name it."""
    input:
        inputs("report"),
    output:
        page=listed(
            "results/{experiment}/report.md",
            "verdicts, numbers, environment",
            "report",
        ),
        receipt=update("results/{experiment}/receipts/report.json"),
    log:
        "logs/{experiment}/report.log",
    wildcard_constraints:
        experiment=any_of(REPORTS),
    params:
        section=section("report"),
    shell:
        "exec inference-lab stage report {wildcards.experiment:q} --section {params.section:q} --log {log:q}"


rule verify:
    """Check every record and rebuild every derived file in memory: what a fresh clone does first."""
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
