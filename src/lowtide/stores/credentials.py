"""Find credentials for object stores.

In:      the environment, profile files; never a flag
Out:     advice if there are none; a provider for sources that obstore does not read itself
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lowtide.errors import DataError
from lowtide.packages import has_package, import_package
from lowtide.stores.urls import StoreURL

__all__ = ["how_to_sign_in", "needs_profile", "profile_credentials"]

_OTHER_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or AWS_PROFILE with boto3 "
    "installed; for a public bucket AWS_SKIP_SIGNATURE=true",
    "s3a": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or: gcloud auth application-default login",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or: az login",
}


def how_to_sign_in(scheme: str) -> str:
    """The next step for a user without credentials."""
    return _CREDENTIALS.get(scheme, _CREDENTIALS["az"])


def needs_profile() -> bool:
    """True if credentials are in profile files, which obstore does not read itself."""
    if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true"):
        return False
    if any(os.environ.get(name) for name in _OTHER_CREDENTIALS):
        return False
    if os.environ.get("AWS_PROFILE"):
        return True
    shared = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws" / "credentials"
    return has_package("boto3") and Path(shared).is_file()


def profile_credentials(root: StoreURL) -> Any:
    """Load the credentials of a profile with boto3."""
    if not has_package("boto3"):
        raise DataError(
            f"the profile {os.environ.get('AWS_PROFILE')} is read by the package boto3, which is "
            "not installed",
            path=str(root),
            next_step="pip install boto3, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    return import_package("obstore.auth.boto3", "AWS_PROFILE").Boto3CredentialProvider()
