# What `snakemake --report` lists: figures, pages and tables, by experiment.
report: "../report/workflow.rst"


# Snakemake warns for each file that it has no times of the job that made it: a clone has none, and its report
# says so once (workflow/report/workflow.rst).
logger.addFilter(lambda line: not str(line.msg).startswith("Missing metadata"))


def listed(path, shows, caption="result"):
    """An output that Snakemake's report lists by experiment, with one sentence of what it shows."""

    def labels(wildcards):
        file = path.rpartition("/")[2].format(**wildcards)
        return {"file": file, "shows": shows or what_is_drawn(wildcards)}

    return report(
        update(path),
        caption=f"../report/{caption}.rst",
        category="{experiment}",
        labels=labels,
    )


def what_is_drawn(wildcards):
    """The first sentence of the module that draws a figure."""
    figures = config["experiments"][wildcards.experiment]["judge"]["figures"]
    drawer = figures[wildcards.figure].replace(".", "/")
    source = Path(f"src/inference_lab/{drawer}.py").read_text()
    return ast.get_docstring(ast.parse(source)).partition("\n")[0]
