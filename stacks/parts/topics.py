"""The SNS topics: `page` for what needs an operator now, `inform` for what can wait."""

from aws_cdk import Aws
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from stacks.options import DeploymentOptions
from stacks.parts.alarms import Undelivered


class Topics(Construct):
    """The topics, encrypted and for TLS only, with the e-mail addresses that the context names.

    `chat_page` and `chat_inform` are there where the context asks for chat. Amazon Q Developer shows only messages in
    a form of its own, which nobody wants to read in an e-mail: so chat has topics of its own. It subscribes itself; the
    key needs no line for it, since SNS decrypts what it delivers.
    """

    def __init__(self, scope: Construct, id: str, *, key: kms.IKey, options: DeploymentOptions) -> None:
        super().__init__(scope, id)
        self.page = make_topic(self, "Page", "Rerail: somebody is needed now", key, options.page_email)
        self.inform = make_topic(self, "Inform", "Rerail: what happened", key, options.inform_email)
        self.chat_page: sns.Topic | None = None
        self.chat_inform: sns.Topic | None = None
        if options.chat:
            self.chat_page = make_topic(self, "ChatPage", "Rerail: somebody is needed now (chat)", key)
            self.chat_inform = make_topic(self, "ChatInform", "Rerail: what happened (chat)", key)
        for topic in (self.page, self.inform):
            let_alarms_publish(topic)
        for topic, name in zip(self.all, ("page", "inform", "page of the chat", "inform of the chat"), strict=False):
            Undelivered(topic, "Undelivered", topic=topic, name=name, page=self.page)

    @property
    def all(self) -> list[sns.Topic]:
        """Those that there are."""
        return [topic for topic in (self.page, self.inform, self.chat_page, self.chat_inform) if topic]


def make_topic(scope: Construct, id: str, display_name: str, key: kms.IKey, email: str = "") -> sns.Topic:
    """Return an encrypted topic for TLS only, with the address as its subscriber if there is one."""
    topic = sns.Topic(scope, id, display_name=display_name, master_key=key, enforce_ssl=True)
    if email:
        topic.add_subscription(subscriptions.EmailSubscription(email))
    return topic


def let_alarms_publish(topic: sns.Topic) -> None:
    """A topic with a policy of its own loses the default one, which lets the account's alarms publish."""
    topic.add_to_resource_policy(
        iam.PolicyStatement(
            sid="Alarms",
            principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
            actions=["sns:Publish"],
            resources=[topic.topic_arn],
            conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
        )
    )
