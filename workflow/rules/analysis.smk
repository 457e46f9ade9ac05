# What they say about the prediction, and the article for a reader.
rule analysis:
    input:
        inputs("analysis"),
    output:
        verdicts=update("results/{experiment}/verdicts.csv"),
        page=update("results/{experiment}/analysis.md"),
        receipt=update("results/{experiment}/receipts/analysis.json"),
    wildcard_constraints:
        experiment=any_of(EXPERIMENTS),
    params:
        section=section("analysis"),
    shell:
        "exec inference-lab analyze {wildcards.experiment:q} --section {params.section:q}"


rule article:
    input:
        inputs("article"),
    output:
        page=update("docs/experiments/{experiment}.md"),
        receipt=update("results/{experiment}/receipts/article.json"),
    wildcard_constraints:
        experiment=any_of(EXPERIMENTS),
    params:
        section=section("article"),
    shell:
        "exec inference-lab article {wildcards.experiment:q} --section {params.section:q}"
