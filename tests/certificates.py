"""A certificate authority of its own for tests, and the certificates that it issues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """`file` has its certificate."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("an authority of tests")
        made = self._certificate(self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=None))
        self.file = folder / "ca.pem"
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(self, host: str, *, expired: bool = False) -> Path:
        """A file with a key and a certificate for this host."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        made = self._certificate(_name(host), key.public_key(), names, days_left=-1 if expired else 1)
        path = self._folder / f"{host}.pem"
        text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        path.write_bytes(text + made.public_bytes(serialization.Encoding.PEM))
        return path

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType, *, days_left: int = 1
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - 3 * _DAY).not_valid_after(now + days_left * _DAY)
        is_authority = isinstance(extension, x509.BasicConstraints)
        return builder.add_extension(extension, critical=is_authority).sign(self._key, hashes.SHA256())
