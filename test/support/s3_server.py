# SPDX-License-Identifier: Apache-2.0
"""An S3 service on this machine: moto's, behind a check of every signature by botocore, with faults."""
import hashlib
import io
import re
import threading

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

KEY, SECRET, TOKEN, REGION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "a/session+token==", "eu-central-1"


class Quiet(WSGIRequestHandler):
    def log(self, *arguments):
        pass


class S3Server:
    """environment: the variables with which a client finds it. fault: is asked about each request, (method, path
    with query), and returns a status to answer instead, or None. requests: those that were answered."""

    def __init__(self):
        self.app = DomainDispatcherApplication(create_backend_app)
        self.server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=Quiet)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self.environment = {"AWS_ENDPOINT_URL_S3": self.endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_REGION": REGION,
                            "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
        self.fault = lambda method, path: None
        self.requests, self.wrong_signatures = [], []
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _answer(self, environ, start_response):
        path = environ["RAW_URI"]
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length)
        self.requests.append((environ["REQUEST_METHOD"], path))
        status = self.fault(environ["REQUEST_METHOD"], path)
        by_peer = environ.get("HTTP_USER_AGENT", "").startswith("Boto3")
        if status is None and not by_peer and not self._is_signed(environ, path, body):
            self.wrong_signatures.append((environ["REQUEST_METHOD"], path))
            status = 403
        if status is not None:
            start_response(f"{status} FAULT", [("Content-Type", "application/xml")])
            return [b"<Error><Code>TestFault</Code><Message>on purpose</Message></Error>"]
        environ["wsgi.input"] = io.BytesIO(body)
        if "list-type=2" in path:  # lists of several pages
            environ["QUERY_STRING"] += "&max-keys=3"
        return self.app(environ, start_response)

    @staticmethod
    def _is_signed(environ, path, body):
        given = environ.get("HTTP_AUTHORIZATION", "")
        names = re.search(r"SignedHeaders=([^,]*)", given)
        if not names:
            return False
        headers = {name: environ["HTTP_" + name.upper().replace("-", "_")] for name in names[1].split(";")}
        if headers.get("x-amz-security-token") != TOKEN:
            return False
        request = AWSRequest(environ["REQUEST_METHOD"], f"http://{headers['host']}{path}", headers, body)
        request.context["timestamp"] = headers["x-amz-date"]
        signer = S3SigV4Auth(Credentials(KEY, SECRET, TOKEN), "s3", REGION)
        request.context["payload_signing_enabled"] = True
        if headers["x-amz-content-sha256"] != hashlib.sha256(body).hexdigest():
            return False
        text = signer.string_to_sign(request, signer.canonical_request(request))
        return given.endswith("Signature=" + signer.signature(text, request))

    def stop(self):
        self.server.shutdown()
