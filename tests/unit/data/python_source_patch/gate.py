"""The gate in the form of sglang 0.5.9, cut down."""


class ModelRunner:
    def _should_run_flashinfer_autotune(self) -> bool:
        """Check if flashinfer autotune should be run."""
        if self.server_args.disable_flashinfer_autotune:
            return False

        backend_str = self.server_args.moe_runner_backend

        if backend_str not in [
            "flashinfer_trtllm",
            "flashinfer_mxfp4",
            # TODO: flashinfer_cutlass will cause some flashinfer compilation errors. To be fixed.
            # "flashinfer_cutlass",
        ]:
            return False

        return not self.is_draft_worker

    def _flashinfer_autotune(self):
        """Run flashinfer autotune."""
        self._dummy_run(batch_size=self.req_to_token_pool.size)
