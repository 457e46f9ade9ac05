# The chain of inference_lab, in the order of the data. What re-runs and why: workflow/rules/receipts.smk.
from snakemake.utils import min_version

min_version("9.27")


configfile: "config.yaml"


include: "workflow/rules/package.smk"
include: "workflow/rules/common.smk"
include: "workflow/rules/receipts.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/tests.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/summary.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/analysis.smk"
include: "workflow/rules/targets.smk"


rule all:
    """Bring everything automatic up to date and say what is recorded."""
    default_target: True
    input:
        closing_table,
        lab_stages.TESTS_RECEIPT,
        results(AUTO),
        lab_stages.VERIFIED_RECEIPT,
