"""The protocols of other servers that need no setting, each a translation onto jobs, runs and files."""

from __future__ import annotations

from contextlib import AbstractContextManager

from fastapi import APIRouter

from penstock.broker.blobs.uploads import FileStore
from penstock.broker.store.aio import AsyncStore
from penstock.extensions.oip.gateway.inference import Inference
from penstock.extensions.oip.gateway.repository import Repository
from penstock.extensions.oip.gateway.routes import OpenInference
from penstock.extensions.openai.gateway.batches import OpenAIBatches
from penstock.extensions.openai.gateway.embeddings import Embeddings
from penstock.extensions.openai.gateway.files import OpenAIFiles
from penstock.extensions.replicate.cog.mount import CogMount
from penstock.extensions.replicate.cog.predictions import CogPredictions
from penstock.extensions.replicate.gateway.catalog import ReplicateCatalog
from penstock.extensions.replicate.gateway.inputs import UploadedInputs
from penstock.extensions.replicate.gateway.predictions import Predictions
from penstock.extensions.replicate.gateway.stream import PredictionStream
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.asgi.wire import BodyMemory
from penstock.gateway.auth.keys import Caller, Shares
from penstock.gateway.auth.roles import WaitingResponses
from penstock.gateway.jobs.events.follow import JobFollower
from penstock.gateway.jobs.predict import PredictEndpoint
from penstock.gateway.jobs.results import ResultReader
from penstock.gateway.jobs.submitting.preferred_wait import PreferredWait
from penstock.gateway.jobs.submitting.submitter import Submitter
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.options import GatewayOptions
from penstock.gateway.runs.routes import RunRoutes
from penstock.gateway.runs.service import RunService


class ForeignProtocols:
    """`requests`, `predictions`, `streams`: the places of callers, by what they wait for. `files`: where uploads lie."""

    def __init__(
        self,
        options: GatewayOptions,
        *,
        store: AsyncStore,
        registry: ModelRegistry,
        submitter: Submitter,
        predict: PredictEndpoint,
        preferred: PreferredWait,
        inference: Inference,
        repository: Repository,
        results: ResultReader,
        follower: JobFollower,
        runs: RunService,
        files: FileStore,
        openai_files: OpenAIFiles,
        uploads: BodyMemory,
        lifetime: Lifetime,
        waiting: WaitingResponses,
        requests: Shares,
        predictions: Shares,
        streams: Shares,
    ) -> None:
        self._options, self._store, self._registry = options, store, registry
        self._submitter, self._predict, self._preferred = submitter, predict, preferred
        self._inference, self._repository = inference, repository
        self._results, self._follower = results, follower
        self._runs, self._files, self._openai_files = runs, files, openai_files
        self._uploads, self._lifetime, self._waiting = uploads, lifetime, waiting
        self._requests, self._predictions, self._streams = requests, predictions, streams

    def routers(self) -> list[APIRouter]:
        return [*self._openai_routers(), *self._replicate_routers(), self._cog_router()]

    def _openai_routers(self) -> list[APIRouter]:
        """What OpenAI's clients call, embeddings, files and batches, with our own runs beside them; and Open Inference."""
        embeddings = Embeddings(
            self._submitter,
            self._options,
            predict=self._predict,
            store=self._store,
            results=self._results,
            lifetime=self._lifetime,
            uploads=self._uploads,
            held=self._held,
        )
        runs = [
            kind(self._runs, registry=self._registry, options=self._options, uploads=self._uploads)
            for kind in (RunRoutes, OpenAIBatches)
        ]
        oip = (self._repository.router(), OpenInference(self._inference, registry=self._registry).router())
        return [embeddings.router(), self._openai_files.router(), *(run.router() for run in runs), *oip]

    def _held(self, caller: Caller) -> AbstractContextManager[None]:
        """A place among the predictions, in the stead of the request's own."""
        return self._predictions.held(caller, instead_of=self._requests)

    def _replicate_routers(self) -> list[APIRouter]:
        options, store = self._options, self._store
        predictions = Predictions(
            self._submitter,
            options,
            store=store,
            registry=self._registry,
            results=self._results,
            uploads=self._uploads,
            inputs=UploadedInputs(self._files, options.max_raw_bytes, self._uploads),
            stream=PredictionStream(store, self._follower, lifetime=self._lifetime, waiting=self._waiting),
            preferred=self._preferred,
            waiting=self._waiting,
        )
        return [predictions.router(), ReplicateCatalog(self._registry, self._files, options, self._openai_files).router()]

    def _cog_router(self) -> APIRouter:
        options, store = self._options, self._store
        predictions = CogPredictions(
            self._submitter,
            options,
            predict=self._predict,
            store=store,
            results=self._results,
            uploads=self._uploads,
            waiting=self._held,
            streaming=lambda caller: self._streams.held(caller, instead_of=self._requests),
        )
        return CogMount(predictions, options, store=store, registry=self._registry).router()
