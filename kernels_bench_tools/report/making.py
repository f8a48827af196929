"""How each product of a site is made. What renders is loaded when something is rendered, and no sooner.

A build in which nothing changed then takes a tenth of a second less, which is most of what it takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels_bench_tools.report.artifacts import Artifact
from kernels_bench_tools.report.devices import KnownDevice
from kernels_bench_tools.report.frame import Site
from kernels_bench_tools.report.operators import Operator
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.site_paths import FEED, operator_feed
from kernels_bench_tools.schema.build import NotebookRun


@dataclass(frozen=True)
class Maker:
    """Makes the products of a site; each method returns the bytes of one file."""

    site: Site

    def front(self) -> bytes:
        """The front page."""
        from kernels_bench_tools.report.pages import front_notebook, front_page

        return front_page(self.site, front_notebook(self.site.build)).encode()

    def selfcheck(self) -> bytes:
        """How good the numbers are."""
        from kernels_bench_tools.report.pages import selfcheck_page

        return selfcheck_page(self.site).encode()

    def status(self) -> bytes:
        """What did not run, and why."""
        from kernels_bench_tools.report.sitewide import status_page

        return status_page(self.site).encode()

    def devices(self) -> bytes:
        """The list of devices."""
        from kernels_bench_tools.report.sitewide import devices_page

        return devices_page(self.site).encode()

    def device(self, known: KnownDevice) -> bytes:
        """The page of a device."""
        from kernels_bench_tools.report.sitewide import device_page

        return device_page(self.site, known).encode()

    def method(self) -> bytes:
        """What every number and word means."""
        from kernels_bench_tools.report.sitewide import method_page

        return method_page(self.site).encode()

    def not_found(self) -> bytes:
        """The page for an address that leads nowhere."""
        from kernels_bench_tools.report.sitewide import not_found_page

        return not_found_page(self.site).encode()

    def feed(self, operator: Operator | None = None) -> bytes:
        """The site's feed, or an operator's."""
        from kernels_bench_tools.report.feeds import atom_feed

        project = self.site.build.project
        if operator is None:
            return atom_feed(project, self.site.operators, Page(FEED, self.site.links)).encode()
        page = Page(operator_feed(operator.folder), self.site.links)
        return atom_feed(project, [operator], page, operator.title).encode()

    def badge(self, operator: Operator) -> bytes:
        """An operator's badge."""
        from kernels_bench_tools.report.badges import operator_badge_svg

        return operator_badge_svg(operator)

    def report(self) -> bytes:
        """The report as data."""
        from kernels_bench_tools.report.files import report_json

        summaries = [operator.summary for operator in self.site.operators if operator.summary]
        return report_json(self.site.build.project, summaries)

    def records(self, operator: Operator) -> bytes:
        """All records behind an operator's summary."""
        from kernels_bench_tools.report.files import joined_records

        return joined_records(self.site.root, self.site.paths, operator)

    def operator(self, operator: Operator) -> bytes:
        """An operator's page."""
        from kernels_bench_tools.report.pages import operator_page

        return operator_page(self.site, operator).encode()

    def backward(self, operator: Operator) -> bytes:
        """The page of an operator's backward passes."""
        from kernels_bench_tools.report.pages import operator_backward_page

        return operator_backward_page(self.site, operator).encode()

    def matrix(self, operator: Operator) -> bytes:
        """The page of an operator's matrix."""
        from kernels_bench_tools.report.sitewide import operator_matrix_page

        return operator_matrix_page(self.site, operator).encode()

    def implementation(self, operator: Operator, notebook: NotebookRun) -> bytes:
        """An implementation's page."""
        from kernels_bench_tools.report.pages import implementation_page

        return implementation_page(self.site, operator, notebook).encode()

    def notebook(self, notebook: NotebookRun) -> bytes:
        """The page of any other notebook."""
        from kernels_bench_tools.report.pages import notebook_page

        return notebook_page(self.site, notebook).encode()

    def figure(self, artifact: Artifact) -> bytes:
        """A figure whose links work from where the site keeps it."""
        from kernels_bench_tools.report.previews import relinked

        return relinked(artifact, self.site.links)

    def highlighting(self) -> bytes:
        """The style sheet of code."""
        from kernels_bench_tools.report.code import highlight_styles

        return highlight_styles().encode()
