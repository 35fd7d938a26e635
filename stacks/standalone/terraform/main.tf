# Deploys Rerail's CloudFormation template, which is the same as that of `rerail deploy`, with Terraform.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "training_role_arns" {
  description = "ARNs of the roles that Rerail may pass to training jobs."
  type        = list(string)
}

variable "checkpoint_bucket" {
  description = "Name of the bucket in which Rerail may read checkpoints; * stands for any characters."
  type        = string
}

variable "page_email" {
  description = "E-mail address of the person on call. AWS sends a message that has to be confirmed."
  type        = string
}

variable "asset_bucket" {
  description = "Bucket of the deployment's region for the template and the functions' code."
  type        = string
}

variable "asset_prefix" {
  description = "Folder in that bucket; empty, or a path that ends with a slash."
  type        = string
  default     = "rerail/"
}

locals {
  template = "${path.module}/Rerail.template.json"
}

resource "aws_s3_object" "asset" {
  for_each    = fileset(path.module, "assets/*.zip")
  bucket      = var.asset_bucket
  key         = "${var.asset_prefix}${each.value}"
  source      = "${path.module}/${each.value}"
  source_hash = filesha256("${path.module}/${each.value}")
}

# CloudFormation takes larger templates from S3 only. The name changes with the content, so that a change is deployed.
resource "aws_s3_object" "template" {
  bucket = var.asset_bucket
  key    = "${var.asset_prefix}${filesha256(local.template)}.json"
  source = local.template
}

resource "aws_cloudformation_stack" "rerail" {
  name         = "Rerail"
  template_url = "https://${var.asset_bucket}.s3.amazonaws.com/${aws_s3_object.template.key}"
  capabilities = ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"]

  parameters = {
    TrainingRoleArns = join(",", var.training_role_arns)
    CheckpointBucket = var.checkpoint_bucket
    PageEmail        = var.page_email
    AssetBucket      = var.asset_bucket
    AssetPrefix      = var.asset_prefix
  }

  depends_on = [aws_s3_object.asset]
}

output "outputs" {
  description = "The stack's outputs, such as the table and the topics."
  value       = aws_cloudformation_stack.rerail.outputs
}
