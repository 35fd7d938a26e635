"""Two ways to be told: `page` wakes somebody, `inform` waits until the morning."""

from aws_cdk import Aws
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from stacks.options import Options


class Topics(Construct):
    """The topics, encrypted and for TLS only, with the e-mail addresses that the context names."""

    def __init__(self, scope: Construct, id: str, *, key: kms.IKey, options: Options) -> None:
        super().__init__(scope, id)
        self.page = self._topic("Page", "Rerail: somebody is needed now", key, options.page_email)
        self.inform = self._topic("Inform", "Rerail: what happened", key, options.inform_email)
        # A topic with a policy of its own loses the default one, which lets the account's alarms publish.
        self.page.add_to_resource_policy(
            iam.PolicyStatement(
                sid="Alarms",
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                actions=["sns:Publish"],
                resources=[self.page.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            )
        )

    def _topic(self, id: str, display_name: str, key: kms.IKey, email: str) -> sns.Topic:
        topic = sns.Topic(self, id, display_name=display_name, master_key=key, enforce_ssl=True)
        if email:
            topic.add_subscription(subscriptions.EmailSubscription(email))
        return topic
