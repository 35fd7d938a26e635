"""Sign and verify with an HMAC key of KMS, which no function and no job can read."""

from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws.clients import client, quick_client
from rerail.model.errors import NotSigned

ALGORITHM = "HMAC_SHA_256"


class SigningKey:
    """An HMAC key."""

    def __init__(self, key_id: str) -> None:
        self._key = key_id

    def sign(self, message: bytes) -> str:
        """Return the signature of the message, 64 hexadecimal digits.

        Raises NotSigned if KMS refuses or does not answer at once.
        """
        try:
            answer = quick_client("kms").generate_mac(KeyId=self._key, Message=message, MacAlgorithm=ALGORITHM)
        except (ClientError, BotoCoreError) as error:
            raise NotSigned(str(error)) from error
        return bytes(answer["Mac"]).hex()

    def has_signed(self, message: bytes, signature: str) -> bool:
        """Return whether the signature is this key's for the message."""
        mac = bytes.fromhex(signature)
        try:
            client("kms").verify_mac(KeyId=self._key, Message=message, MacAlgorithm=ALGORITHM, Mac=mac)
        except ClientError as error:
            if error.response["Error"]["Code"] == "KMSInvalidMacException":
                return False
            raise
        return True
